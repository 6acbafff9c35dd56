"""Entities spread over the nodes of a cluster: one actor per id, each in one place.

`sharding.coordinator` decides which node hosts which shard, `sharding.region` what one node does
about it, `sharding.allocation` who gets a shard. All are pure; `node.core` owns the machines and
`node.regions` carries out what they order. An id belongs to a shard for ever (`shard_of`), a shard
to one node at a time.
"""
