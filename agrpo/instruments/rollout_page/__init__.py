"""Reading rollouts: one conversation with its tokens, its rewards, its group, and what became of it.

`choosing` says which rollouts are meant, `reading` asks the database once, `page` lays it out for a terminal and
`document` for programs. Nothing is kept that the run did not record.
"""
