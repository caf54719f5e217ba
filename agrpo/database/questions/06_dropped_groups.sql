-- Which rollouts were dropped, and why?
--
-- One row per reason, of the groups that plans consumed without training them. equal_rewards: every rollout earned the
-- same, so nothing can be learned from it (too easy or too hard); stale: too late; filtered: left out by the run's
-- filter_prompt; left_out: by one of its filters, which is named. Every one of them is in rollouts_with_rewards,
-- where status = 'dropped'.
--
-- drop_reason: why; NULL: trained
-- left_out_by: the filter, where that is the reason
-- num_groups, num_rollouts: how many
-- share: of all consumed groups
-- reward_mean: over the scored rollouts
-- staleness_mean: weight updates between sampling and the step
-- tickets: the newest three groups
WITH group_rewards AS (
    SELECT ticket, count(*) AS num_rollouts, count(reward) AS num_scored, sum(reward) AS total
    FROM scores
    GROUP BY ticket
)
SELECT
    drop_reason, left_out_by, count(*) AS num_groups, coalesce(sum(num_rollouts), 0)::BIGINT AS num_rollouts,
    count(*) / sum(count(*)) OVER () AS share, sum(total) / sum(num_scored) AS reward_mean,
    avg(staleness) AS staleness_mean, max(ticket, 3) AS tickets
FROM live_step_groups LEFT JOIN group_rewards USING (ticket)
GROUP BY drop_reason, left_out_by
ORDER BY num_groups DESC, drop_reason, left_out_by;
