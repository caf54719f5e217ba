-- Where does the time of a step go?
--
-- Mean wall time of the parts of a step over the last steps, largest first. The parts add up to the step. Much wait:
-- generation or scoring is the bottleneck, and question waits tells which; little wait and much forward and backward: the
-- learner is.
--
-- $last INTEGER = 100: how many steps, counted from the newest
-- $step INTEGER = NULL: only this step; NULL is all of the last ones
--
-- part: wait, read, plan, forward, backward, optimizer, digest, record, sync, checkpoint or other
-- seconds_mean: per step
-- share: of the steps' time
-- seconds_max: the longest
-- slowest_step: the step that took it
SELECT
    part, avg(seconds) AS seconds_mean, sum(seconds) / sum(sum(seconds)) OVER () AS share,
    max(seconds) AS seconds_max, arg_max(step, seconds) AS slowest_step
FROM step_times
WHERE step > (SELECT max(step) FROM live_steps) - $last AND ($step IS NULL OR step = $step)
GROUP BY part
ORDER BY seconds_mean DESC, part;
