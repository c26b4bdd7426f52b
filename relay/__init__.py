"""The relay, which pairs the two ends of a tunnel and copies encrypted bytes between the ends.

The relay has no state beside its connections and the tickets of the last minute (decision 0134).
"""
