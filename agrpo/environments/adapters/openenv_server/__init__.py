"""An OpenEnv server as the adapter sees it: `world` is what it offers, `session` one rollout's episode on it."""
