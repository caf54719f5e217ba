"""The archive: what the queue held of tickets that no recovery needs soon, in Parquet files of up to 256 tickets each.

archive/groups/{first}-{last}.parquet    first and last ticket it holds; scored and claims likewise

A file is created once, whole, and never changed; then the objects it holds are unlinked. They can be read from it bit
for bit, and asked in SQL where they lie: `SELECT ticket, unnest(rows) FROM 'archive/groups/*.parquet'`.
"""
