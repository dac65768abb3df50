"""The intermediate representation: programs whose values live in index spaces.

`program` has the equations of a layer, `array_program` those of a function of whole arrays.
Around a program: `show` and `parse` (its text), `verify` (its rules), `interpret` (what it means,
the oracle of the tests), `build` (equations written by a pass). In: nothing; the frontend makes
programs, passes rewrite them, lowerings run them, so all of these may import it.
"""
