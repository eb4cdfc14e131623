package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// deployment is where the services of one deployment are, and what shows who asks.
type deployment struct {
	Query       string `yaml:"query,omitempty" json:"query,omitempty"`
	Coordinator string `yaml:"coordinator,omitempty" json:"coordinator,omitempty"`
	Reconciler  string `yaml:"reconciler,omitempty" json:"reconciler,omitempty"`
	Agent       string `yaml:"agent,omitempty" json:"agent,omitempty"`
	TokenFile   string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
	CAFile      string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	CertFile    string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile     string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	ServerName  string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

// contexts is the file of contexts.
type contexts struct {
	Current  string                `yaml:"current"`
	Contexts map[string]deployment `yaml:"contexts"`
}

// contextsVariable names another file of contexts than the one in the user's directory.
const contextsVariable = "LMCTL_CONFIG"

func contextsFile() (string, error) {
	if f := os.Getenv(contextsVariable); f != "" {
		return f, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("contexts: %w; %s names their file", err, contextsVariable)
	}
	return filepath.Join(dir, "lightmetrics", "lmctl.yaml"), nil
}

// readContexts reads the file; none is no context. Others must not be able to change
// where an operator's token is sent.
func readContexts() (contexts, error) {
	c := contexts{Contexts: map[string]deployment{}}
	path, err := contextsFile()
	if err != nil {
		// Somebody who names a context must not silently reach the default addresses in its place.
		if os.Getenv("LMCTL_CONTEXT") != "" {
			return c, err
		}
		return c, nil // no home directory, no contexts
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("contexts: %w", err)
	}
	defer f.Close()
	// The open file is checked and not its name, so nobody can exchange it between the check and the
	// reading.
	st, err := f.Stat()
	if err != nil {
		return c, fmt.Errorf("contexts: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return c, fmt.Errorf("contexts: %s has mode %04o: want 0600", path, st.Mode().Perm())
	}
	dec := yaml.NewDecoder(f)
	// A misspelled ca_file that is passed over would connect with other authorities than those that were
	// meant.
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("contexts: %s: %w", path, err)
	}
	return c, nil
}

func (c contexts) write() error {
	path, err := contextsFile()
	if err != nil {
		return err
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	if err := vfs.ReplaceFile(vfs.OS, path, b); err != nil { // of mode 0600
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// currentDeployment is that of LMCTL_CONTEXT, or of the context in use; else empty.
func currentDeployment() (deployment, error) {
	c, err := readContexts()
	if err != nil {
		return deployment{}, err
	}
	name := os.Getenv("LMCTL_CONTEXT")
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return deployment{}, nil
	}
	return c.get(name)
}

func (c contexts) get(name string) (deployment, error) {
	d, ok := c.Contexts[name]
	if !ok {
		return d, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("there is no context %q; there are %q", name, slices.Sorted(maps.Keys(c.Contexts)))}
	}
	return d, nil
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func contextCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Where the services of a deployment are: add, use, list, show, remove",
		Long: "A context holds the addresses, token and certificates of one deployment, in a file with mode 0600 in the user's\n" +
			"configuration directory (" + contextsVariable + " names another). LMCTL_CONTEXT takes another one than that in use; variables and flags win over it."}
	cmd.AddCommand(contextAdd(), contextUse(), contextList(out), contextShow(out), contextRemove())
	return cmd
}

func contextAdd() *cobra.Command {
	var d deployment
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Add a context, or replace it; the first one is taken into use", Args: cobra.ExactArgs(1),
		Example: "  lmctl context add prod --query grpcs://query.example:4761 --coordinator grpcs://coordinator.example:4781 \\\n    --token-file ~/.config/lightmetrics/prod.token --ca-file /etc/ssl/lightmetrics.pem",
		RunE: func(_ *cobra.Command, args []string) error {
			if !contextName.MatchString(args[0]) {
				return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("context %q: want letters, digits, dot, underscore and hyphen", args[0])}
			}
			for _, a := range []struct{ face, addr string }{{"query", d.Query}, {"coordinator", d.Coordinator}, {"reconciler", d.Reconciler}, {"agent", d.Agent}} {
				if a.addr == "" {
					continue
				}
				// Addresses are checked when they are stored, since a mistake in them would otherwise show
				// in every later command.
				if _, _, err := parseAddress(a.addr, a.face == "agent"); err != nil {
					return err
				}
			}
			c, err := readContexts()
			if err != nil {
				return err
			}
			c.Contexts[args[0]] = d.absolute()
			if c.Current == "" {
				c.Current = args[0]
			}
			return c.write()
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.Query, "query", "", "address of a query service")
	f.StringVar(&d.Coordinator, "coordinator", "", "address of a coordinator")
	f.StringVar(&d.Reconciler, "reconciler", "", "address of a reconciler")
	f.StringVar(&d.Agent, "agent", "", "address of an agent")
	f.StringVar(&d.TokenFile, "token-file", "", "file that holds the bearer token")
	f.StringVar(&d.CAFile, "ca-file", "", "PEM certificates that sign the servers'")
	f.StringVar(&d.CertFile, "cert-file", "", "PEM client certificate")
	f.StringVar(&d.KeyFile, "key-file", "", "PEM private key")
	f.StringVar(&d.ServerName, "server-name", "", "name to verify instead of the address")
	return cmd
}

// absolute makes the names of files good in every directory.
func (d deployment) absolute() deployment {
	for _, p := range []*string{&d.TokenFile, &d.CAFile, &d.CertFile, &d.KeyFile} {
		if *p != "" {
			// Without a working directory the name stays as it is, and using it reports the error.
			if abs, err := filepath.Abs(*p); err == nil {
				*p = abs
			}
		}
	}
	return d
}

func contextUse() *cobra.Command {
	return &cobra.Command{Use: "use NAME", Short: "Take a context into use", Args: cobra.ExactArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := c.get(args[0]); err != nil {
				return err
			}
			c.Current = args[0]
			return c.write()
		}}
}

func contextRemove() *cobra.Command {
	return &cobra.Command{Use: "remove NAME", Short: "Remove a context", Args: cobra.ExactArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			if _, err := c.get(args[0]); err != nil {
				return err
			}
			delete(c.Contexts, args[0])
			// A current context that does not exist would make every command fail.
			if c.Current == args[0] {
				c.Current = ""
			}
			return c.write()
		}}
}

func contextList(out *format) *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List contexts; * marks the one in use", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			t := table{header: []string{"", "NAME", "QUERY", "COORDINATOR", "RECONCILER", "AGENT"}}
			for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
				mark, d := "", c.Contexts[name]
				if name == c.Current {
					mark = "*"
				}
				t.rows = append(t.rows, []string{mark, name, d.Query, d.Coordinator, d.Reconciler, d.Agent})
			}
			return out.write(cmd.OutOrStdout(), map[string]any{"current": c.Current, "contexts": c.Contexts}, t)
		}}
}

func contextShow(out *format) *cobra.Command {
	return &cobra.Command{Use: "show [NAME]", Short: "Show a context, or the one in use", Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			// Its error is dropped when a name is given: a context can be shown while LMCTL_CONTEXT names
			// none that exists.
			d, err := currentDeployment()
			if len(args) == 1 {
				d, err = c.get(args[0])
			}
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), d, table{header: []string{"WHAT", "VALUE"}, rows: [][]string{
				{"query", d.Query}, {"coordinator", d.Coordinator}, {"reconciler", d.Reconciler}, {"agent", d.Agent}, {"token_file", d.TokenFile},
				{"ca_file", d.CAFile}, {"cert_file", d.CertFile}, {"key_file", d.KeyFile}, {"server_name", d.ServerName}}})
		}}
}

func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := readContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(c.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
