"""Entities spread over nodes. Empty so far."""
