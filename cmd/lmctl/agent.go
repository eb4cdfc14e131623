package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

const (
	agentTimeout = 10 * time.Second
	maxAnswer    = 4 << 20
	// tokenVariable holds the token of the agent's HTTP address: a flag would show in the process list.
	tokenVariable = "LMCTL_AGENT_TOKEN"
)

func agentCommand(out *format) *cobra.Command {
	var a agentAddress
	cmd := &cobra.Command{Use: "agent", Short: "Inspect an agent and resolve its conflicts"}
	cmd.PersistentFlags().StringVar(&a.url, "addr", "http://127.0.0.1:4320", "[http|https://]host:port of the agent's HTTP address; LMCTL_AGENT_ADDR, or the context in use")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.resolve(cmd.Flags().Changed("addr")) }
	cmd.AddCommand(
		&cobra.Command{
			Use:   "status",
			Short: "Queue, collectors, parked conflicts; exits 3 when something needs a person",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				b, err := a.request(cmd.Context(), http.MethodGet, "/status")
				if err != nil {
					return err
				}
				var st agent.Status
				if err := json.Unmarshal(b, &st); err != nil {
					return fmt.Errorf("%s/status: %w", a.url, err)
				}
				if err := out.write(cmd.OutOrStdout(), st, statusTable(st)); err != nil {
					return err
				}
				// The status is written first: the reader of JSON needs it most when there are alerts.
				if len(st.Alerts) > 0 {
					lines := make([]string, len(st.Alerts))
					for i, alert := range st.Alerts {
						lines[i] = alert.String()
					}
					return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New(strings.Join(lines, "\n"))}
				}
				return nil
			},
		},
		&cobra.Command{
			Use:   "accept-existing ID",
			Short: "Drop a parked frame: only the batch that was accepted under its identity remains",
			Long: "Drops a parked frame from the agent's disk. The frame stays quarantined in the bucket. " + tokenVariable +
				" holds the agent's token where it wants one.",
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				_, err := a.request(cmd.Context(), http.MethodPost, "/conflicts/"+url.PathEscape(args[0])+"/accept-existing")
				return err
			},
		})
	return cmd
}

func statusTable(st agent.Status) table {
	t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{
		{"agent", st.Boot.AgentID}, {"boot", st.Boot.BootID}, {"next sequence", fmt.Sprint(st.Boot.NextSeq)},
		{"pending", fmt.Sprintf("%d batches, %d bytes, oldest %.0f s", st.Queue.Pending, st.Queue.PendingBytes, st.Queue.OldestAgeSeconds)},
		{"disk", fmt.Sprintf("%d of %d bytes, when full %s", st.Queue.DiskBytes, st.Queue.MaxBytes, st.Queue.Policy)},
		{"dead letters", fmt.Sprint(st.Queue.Dead)},
	}}
	if s := st.Sender; s.List != "" {
		list := fmt.Sprintf("%s, since %s", s.List, s.ListSince.UTC().Format(time.RFC3339))
		if r := s.Return; r != nil && r.TryAt != nil {
			list += fmt.Sprintf("; a preferred one answers since %s, and gets a batch to try after %s", r.SteadySince.UTC().Format(time.RFC3339), r.TryAt.UTC().Format(time.RFC3339))
		}
		t.rows = append(t.rows, []string{"collectors in use", list})
	}
	for _, c := range st.Sender.Collectors {
		state := string(c.State)
		if c.List == send.Fallback {
			state = "fallback, " + state
		}
		if c.Fault != "" {
			state += ", " + string(c.Fault)
		}
		if c.LastError != "" {
			state += ", last error: " + c.LastError
		}
		t.rows = append(t.rows, []string{"collector " + c.Address, state})
	}
	for _, p := range st.Parked {
		what := p.ID
		if met := p.Met(); met != "" {
			what += ", which meets the accepted batch " + met
		}
		t.rows = append(t.rows, []string{"parked conflict", what})
	}
	return t
}

// agentAddress is an agent's HTTP address, and how it is asked. The agent itself speaks HTTP;
// where it is asked over a network, a proxy before it has TLS.
type agentAddress struct {
	url    string
	token  string
	client http.Client
}

// resolve finds the address, unless a flag has it, and the certificates of https.
func (a *agentAddress) resolve(given bool) error {
	d, err := currentDeployment()
	if err != nil {
		return err
	}
	if !given {
		a.url = cmp.Or(os.Getenv("LMCTL_AGENT_ADDR"), d.Agent, a.url)
	}
	hostport, scheme, err := parseAddress(a.url, true)
	if err != nil {
		return err
	}
	// Requests append their path to it, so it has a scheme, and nothing behind the port.
	a.url = cmp.Or(scheme, "http") + "://" + hostport
	a.token = os.Getenv(tokenVariable)
	// An agent never redirects, so a redirect is followed by nobody who should get the token.
	a.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if scheme != "https" {
		if a.token != "" && !isLoopback(hostport) {
			return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("address %q: a token is sent without TLS to this machine alone: write https://%s", a.url, hostport)}
		}
		return nil // certificates of a context are for the services that it names with TLS
	}
	tls := withEnvironment(rpc.ClientConfig{}, d).TLS
	tls.Enabled = true
	config, err := tls.Config()
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	// A copy: the default transport belongs to the whole process.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	a.client.Transport = transport
	return nil
}

func (a *agentAddress) request(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, nil)
	if err != nil {
		return nil, &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	defer resp.Body.Close()
	// Whatever listens at the address, a wrong server's endless answer must not fill the memory.
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, req.URL, resp.Status, strings.TrimSpace(string(b)))
	}
	return b, nil
}
