"""The intermediate representation: programs over index spaces."""
