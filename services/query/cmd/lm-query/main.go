// Command lm-query runs a query node.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/query"
)

func main() { cli.Main(query.Command()) }
