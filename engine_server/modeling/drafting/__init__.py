"""Draft heads: modules that propose tokens from a target model's hidden states, in their published layouts."""
