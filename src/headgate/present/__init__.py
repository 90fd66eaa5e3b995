"""Documents as view models: what a person is to see, before anybody draws it. Pure."""
