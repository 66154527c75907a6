// Sources of this target: those of swift/Sources/Comity, which the plugin UntypedThrows rewrites.
