-- Which prompts of the dataset were never asked, and which never trained?
--
-- One row per fate of the dataset's rows. In a run of less than an epoch most were never asked; rows that were asked and
-- never trained had equal rewards every time, or came too late.
--
-- fate: never asked, asked and never trained, or trained
-- num_rows: rows of the dataset
-- share: of them
-- row_indices: the first twenty
WITH asked AS (
    SELECT row_index, coalesce(bool_or(trained), false) AS trained
    FROM groups LEFT JOIN live_step_groups USING (ticket)
    GROUP BY row_index
),
dataset AS (
    SELECT unnest(range((document->>'$.prompts_per_epoch')::BIGINT)) AS row_index FROM runs
),
fates AS (
    SELECT
        row_index,
        CASE WHEN trained IS NULL THEN 'never asked' WHEN trained THEN 'trained' ELSE 'asked and never trained' END
            AS fate
    FROM dataset LEFT JOIN asked USING (row_index)
)
SELECT fate, count(*) AS num_rows, count(*) / sum(count(*)) OVER () AS share, min(row_index, 20) AS row_indices
FROM fates
GROUP BY fate
ORDER BY fate;
