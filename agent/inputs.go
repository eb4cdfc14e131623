package agent

import (
	"reflect"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/input/host"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
)

// Inputs is the registry of inputs: the settings of each kind, each an input.Settings. One line
// here is enough for the agent to load, validate, reload, run and report a kind; nothing else in
// this package names one. docs/contributing.md has the steps.
type Inputs struct {
	Host   host.Config   `koanf:"host" reload:"yes"`
	Scrape scrape.Config `koanf:"scrape" help:"Prometheus endpoints" reload:"yes"`
}

// DefaultInputs reads this host.
func DefaultInputs() Inputs { return Inputs{Host: host.DefaultConfig()} }

// all gives the fields in order.
func (in Inputs) all() []input.Settings {
	v := reflect.ValueOf(in)
	out := make([]input.Settings, v.NumField())
	for i := range out {
		out[i] = v.Field(i).Interface().(input.Settings) // TestEveryInputIsRegistered
	}
	return out
}
