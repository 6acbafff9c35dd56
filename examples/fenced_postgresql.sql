-- A write that only the present holder of a lease can make, into PostgreSQL, in one statement.
-- It returns one row when the payment was written (or had been before), and none when a later
-- holder was here: then stop. `:token`, `:payment` and `:cents` are parameters of psql; with a
-- driver write $1, $2, $3.
--
--   CREATE TABLE payments (id text PRIMARY KEY, cents bigint NOT NULL);
--   CREATE TABLE fences (name text PRIMARY KEY, token bigint NOT NULL);

WITH fence AS (
    INSERT INTO fences VALUES ('payments', :token)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token
        WHERE fences.token <= excluded.token
    RETURNING token
)
INSERT INTO payments
SELECT :'payment', :cents FROM fence
ON CONFLICT (id) DO UPDATE SET cents = payments.cents
RETURNING id;
