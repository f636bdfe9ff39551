"""Steps that compute drafts for speculative decoding."""
