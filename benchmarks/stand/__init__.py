"""The stand that the benchmarks are mounted on: small runs made from nothing, readings of processes, tables."""
