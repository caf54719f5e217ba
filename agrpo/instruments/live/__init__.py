"""The live view: a run as it goes on, read from its folder alone, so that watching keeps nobody of the run waiting.

`looking.py` reads, `drawing.py` draws what was read, `layout.py` finds it a place; `showing.py` keeps a terminal up to
date, `telling.py` a pipe.
"""
