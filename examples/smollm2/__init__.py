"""SmolLM2-135M-Instruct learns to answer sums with a number and nothing else; README.md says how."""
