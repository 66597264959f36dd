"""Mutation testing: small mistakes made by rule, and the tests that notice each.

    python -m tests.assurance.mutants                                # all mutants of dataparallel
    python -m tests.assurance.mutants --package core --tier full --sample 400 --seed 7
    python -m tests.assurance.mutants --only dataparallel/replicate.py --budget 60

The output is each mutant that no test notices, as a diff, and a score for each folder. Some mutants
change nothing that a caller could notice, such as a check that only saves time: they remain in the
score. A file of `--only` that is in no package is judged by the tests of core.

`operators` says what is changed, `mutants` finds the lines, `covering` the tests that run each;
`server` is a process that forks a `child` for each mutant, with the mistake put in by `planting`;
`results` has the scores.

- A mutant is tried by the tests that run its line, until one fails: first the quickest of each way
  through its function, and as many as `--budget` seconds of CPU time allow. The report says how
  many these were. What runs when a module is imported has no test of its own: the tests of its
  function or of its file are taken.
- Nothing is written to a file of the package. A process that has collected the tests forks a child
  for each mutant, which gets the changed code into its functions, or imports package and tests anew
  where the change is in what runs at import. So a killed mutant costs about a second. Tests that
  start processes (fixtures `python` and `pytester`) do not see it and take no part.
- Too much CPU time is a loop without end. Where no thread of the child runs for 5 seconds,
  they wait for each other. Both count as killed, as does the end of the process.
- A test that kills has to pass without the mutant, as the first of its process: otherwise it is
  left out.
- The folder `.mutation/` keeps which lines each test runs, until a file changes.
  MUTATE_EXAMPLES=6 in the environment gives each property that many examples.
- `--sample N --seed S` are the same mutants each time, as long as the files stay the same.

The changes are made with LibCST, and not by cosmic-ray or mutmut. The first starts a command for
each mutant, and has none for removed statements, arguments or returned values. The second puts a
wrapper around each function; a simulator that replaces functions of torch, and tests
that look at frames, references and pickles, are better judged without one.
"""
