"""Graphs as people have them: files, tables and other libraries' objects, to an `EdgeList`.

In: a path, a table or an object. Out: edges numbered from 0, their columns, and what the source
tells of the vertices. `gnnjit.data` makes datasets of it; `gnnjit data show` tells what is there.
"""
