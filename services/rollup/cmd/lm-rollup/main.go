// Command lm-rollup is the rollup worker alone.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

func main() { cli.Main(rollup.Command()) }
