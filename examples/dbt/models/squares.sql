{{ config(materialized="table") }}
select n, n * n as square from {{ ref("numbers") }}
