-- Which groups were given up by going back, and who asks their prompts again?
--
-- The newest. After going back, groups of the future that was left are void, and their prompts are given out first. Nothing
-- of a void group is trained; lost_step is where the abandoned branch had trained it.
--
-- $rows INTEGER = 50: groups to show
--
-- ticket: the void group
-- reason: reissued, or void_base (claimed by a generator that had not seen that the run went back)
-- lost_step: first step off the history that trained it; NULL: none
-- prompt_id: what it asked; NULL: it was claimed only
-- again: first group that has asked the same since; NULL: none so far
-- again_status: what became of that
WITH void AS (
    SELECT ticket, reason, prompt_id FROM group_status WHERE reason IN ('reissued', 'void_base')
),
rewound AS (
    SELECT min(first_ticket) AS first_ticket FROM members
),
lost AS (
    SELECT ticket, min(step) AS lost_step
    FROM step_groups ANTI JOIN lineage
        ON step_groups.attempt = lineage.attempt AND step >= first_step AND (last_step IS NULL OR step <= last_step)
    WHERE trained
    GROUP BY ticket
),
asked AS (
    SELECT prompt_id, ticket, status, reason FROM group_status, rewound WHERE ticket >= first_ticket AND NOT is_void(reason)
)
SELECT
    void.ticket, void.reason, lost_step, void.prompt_id, min(asked.ticket) AS again,
    arg_min(asked.status, asked.ticket) AS again_status
FROM void
LEFT JOIN lost ON lost.ticket = void.ticket
LEFT JOIN asked ON asked.prompt_id = void.prompt_id AND asked.ticket > void.ticket
GROUP BY ALL
ORDER BY void.ticket DESC
LIMIT $rows;
