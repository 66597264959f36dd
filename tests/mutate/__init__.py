"""Mutation testing: small mistakes made by rule, and the tests that have to notice each.

`operators` says what may be changed, `mutants` finds the places, `covering` the tests that run
each; `server` is a process that forks a `child` for each mutant, with the mistake put in by
`planting`; `results` judges and reports. README.md of the tests says how to use it.
"""
