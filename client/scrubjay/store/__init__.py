"""Every storage operation, written once; drivers run them.

An operation (items, lists, notes, vectors, quotas) is a generator that yields SQL and is sent rows. It knows
quotas, versions, expiry and errors, and nothing of connections. A driver (sqlite, aio) runs it
inside one transaction and knows nothing of what it means.
"""
