"""Programs of views as data: types, expressions, operators, their identity and their difference. Pure."""
