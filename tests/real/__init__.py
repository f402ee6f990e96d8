"""Tests against parts that nobody here wrote: vLLM, Dynamo and the agents' own command lines."""
