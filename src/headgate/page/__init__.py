"""The page for people.   Control ──► PageSite ──► a page's handlers ──► PageApi ──► the API

Everything that it shows or does goes through the routes of the command line and curl: validated,
audited, and by the same roles. What is shown is made here, as HTML; a script makes it live.
"""
