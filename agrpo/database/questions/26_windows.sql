-- How does a measure develop, in windows of steps?
--
-- The documented measures (docs/spec/async_grpo.md, sections 20 and 21) computed from the rows, each by its own rule: means
-- over all items of the window, counts added up, extremes kept. For what the learner logged step by step: live_metrics.
--
-- $metric VARCHAR = 'reward': its name, where % stands for any letters, such as completions/%
-- $size INTEGER = 10: steps of a window
--
-- first_step, last_step: the window
-- name: the measure
-- value: over the window
SELECT first_step, last_step, name, value
FROM window_metrics($size)
WHERE name LIKE $metric
ORDER BY name, first_step;
