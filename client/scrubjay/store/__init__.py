"""The rules of the store, written once for every database engine.

An operation (items, lists, notes, vectors, quotas) is a generator that yields named queries and is sent rows. It
knows quotas, versions, expiry and errors, and nothing of connections. An engine (`sqlite`, `postgres`) has the SQL
text of each query and a driver that runs operations in transactions; it knows nothing of what an operation means.
"""
