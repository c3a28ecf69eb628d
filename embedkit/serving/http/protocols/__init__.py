"""The routes, one module for each kind of client: its schemas, and the functions that answer."""
