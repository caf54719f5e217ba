"""Two environments in one run: each row's `environment` column says in which its rollouts act."""
