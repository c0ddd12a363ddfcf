"""Setup of a node: facts about it, and the steps. Standard library only, Python 3.10."""
