"""Broken kernels and their repaired twins, by class of hazard: what `tensorladder check --zoo` runs.

A class is one Python file: `CASES`, written with literals so that they list without any DSL, and the cases' kernels in
CuTe DSL. Cases in CUDA C++ lie in the .cu file of the same name. Each case is one kernel with a constexpr `broken`; a
comment `hazard: NAME` marks the line that a finding about it has to name. Cases are alike on purpose and read alone.
`case` lists and compiles them, `measure.zoo` runs them.
"""
