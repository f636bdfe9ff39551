"""The grammars of calls in each form, in llguidance's variant of Lark's syntax."""
