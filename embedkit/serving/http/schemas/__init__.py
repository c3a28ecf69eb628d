"""Schemas of requests and responses by protocol, from which the OpenAPI document is generated."""
