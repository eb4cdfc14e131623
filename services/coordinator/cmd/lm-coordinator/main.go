// Command lm-coordinator runs a coordinator.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/coordinator"
)

func main() { cli.Main(coordinator.Command()) }
