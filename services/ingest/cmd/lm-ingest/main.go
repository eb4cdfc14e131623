// Command lm-ingest runs a collector.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func main() { cli.Main(ingest.Command()) }
