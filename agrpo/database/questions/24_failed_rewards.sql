-- Which rewards failed, with which errors?
--
-- Most frequent first. A reward that fails costs its own completion a value, never the run; a group of which fewer than
-- two rollouts have a score cannot be trained.
--
-- $rows INTEGER = 20: errors to show
--
-- name: the reward
-- error: its message
-- num_rollouts, num_groups: that it cost a value
-- first_ticket, last_ticket: from and to
-- seconds_max: longest call that ended so
SELECT
    name, error, count(*) AS num_rollouts, count(DISTINCT ticket) AS num_groups, min(ticket) AS first_ticket,
    max(ticket) AS last_ticket, max(duration_seconds) AS seconds_max
FROM rewards
WHERE error IS NOT NULL
GROUP BY name, error
ORDER BY num_rollouts DESC, name, error
LIMIT $rows;
