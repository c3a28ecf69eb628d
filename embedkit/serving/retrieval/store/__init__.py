"""How a collection is stored: the interface of stores, and the folder with its segments, tail and indexes."""
