{{ config(materialized="table") }}
select n from generate_series(1, 1000) as n
