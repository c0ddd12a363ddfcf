"""What a cluster or an endpoint costs, from its file and the price lists in ``config/facts/prices``."""
