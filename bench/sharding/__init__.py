"""Sharding, measured: what an entity costs, and what befalls it when nodes leave, die or lose the
lease of their coordinator. Real processes; `command` runs everything."""
