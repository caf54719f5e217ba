-- In which groups are the advantages the furthest apart?
--
-- One right answer among many wrong ones, or the reverse: these groups move the policy the most. If they are all of one
-- kind of prompt, or a reward is wrong for them, it shows here first.
--
-- $rows INTEGER = 20: groups to show
--
-- step, ticket: when it was trained, and the group
-- question: the beginning of the prompt's last message
-- num_samples: trained sequences
-- advantage_min, advantage_max, spread: and the distance between them
-- reward_mean: of the group
WITH widest AS (
    SELECT
        step, ticket, count(*) AS num_samples, min(advantage) AS advantage_min, max(advantage) AS advantage_max,
        max(advantage) - min(advantage) AS spread
    FROM live_samples
    GROUP BY step, ticket
    ORDER BY spread DESC, ticket DESC
    LIMIT $rows
)
SELECT
    any_value(step) AS step, ticket, left(any_value(prompt)->>'$[#-1].content', 80) AS question,
    any_value(num_samples) AS num_samples, any_value(advantage_min) AS advantage_min,
    any_value(advantage_max) AS advantage_max, any_value(spread) AS spread, avg(reward) AS reward_mean
FROM widest JOIN groups USING (ticket) LEFT JOIN scores USING (ticket)
GROUP BY ticket
ORDER BY spread DESC, ticket DESC;
