"""The outbox: a durable queue of writes in front of an executor.

A write that the executor cannot take now is stored in a small SQLite file and sent later, in order and once, by this
process or the next. `queue` is the file, `sender` the thread that empties it, `overlay` what reads see of it, and
`executor` puts them in front of another executor.
"""
