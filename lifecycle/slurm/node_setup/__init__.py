"""What runs on a node: facts about it, and the steps that set it up. Standard library only, Python 3.10."""
