// Command lm-reconciler is the reconciler alone.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/reconciler"
)

func main() { cli.Main(reconciler.Command()) }
