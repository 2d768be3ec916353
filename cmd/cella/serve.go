package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"cella.dev/cella/gateway"
	"cella.dev/cella/gateway/keys"
	"cella.dev/cella/node"
)

// stopGrace is how long requests under way may take when the server stops.
const stopGrace = 10 * time.Second

// serveOptions are the flags that serve and up share.
type serveOptions struct {
	nodeFlags
	listen string
	domain string
	json   bool
}

func (o *serveOptions) register(flags *pflag.FlagSet) {
	o.nodeFlags.register(flags)
	o.registerNetwork(flags, "auto")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:3000", "address of the API and the data plane")
	flags.StringVar(&o.domain, "domain", "", "wildcard domain whose hosts PORT-ID.DOMAIN reach this server")
	flags.BoolVar(&o.json, "json", false, "when ready, print one line of JSON on standard output")
}

func newServeCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the E2B API",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), o, func(url string, _ *keys.Store) error {
				if o.json {
					return json.NewEncoder(os.Stdout).Encode(map[string]string{"url": url})
				}
				fmt.Printf("cella serves the E2B API at %s\n", url)
				return nil
			})
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// newUpCommand is serve for someone who has nothing yet: it makes an API key and says how to use it.
func newUpCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Quick start: set up if needed, make an API key, serve, and print what to export",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := setupIfNeeded(cmd.Context()); err != nil {
				return err
			}
			return serve(cmd.Context(), o, func(url string, store *keys.Store) error { return announce(o.json, url, store) })
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// serve runs node and gateway until a signal; ready is called when requests are answered.
func serve(ctx context.Context, o serveOptions, ready func(url string, store *keys.Store) error) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	raiseFileLimit()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	store, err := keys.Open(filepath.Join(o.state, "keys"))
	if err != nil {
		return err
	}
	opts, err := o.options()
	if err != nil {
		return err
	}
	opts.Logger = log
	n, err := node.Open(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeNode(n)) }()
	if err := ensureBase(ctx, n); err != nil {
		return err
	}
	server, err := gateway.New(gateway.Config{Node: n, Keys: store, Domain: o.domain, Logger: log})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := ready(serverURL(listener.Addr()), store); err != nil {
		return err
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop() // a second signal ends the process at once
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	return server.Shutdown(grace)
}

// serverURL is where a client on this machine reaches addr. A wildcard is no address to connect to; the
// loopback one also holds where a port is forwarded, as `cella lab run --forward` does.
func serverURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return "http://" + net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + addr.String()
}

func announce(asJSON bool, url string, store *keys.Store) error {
	_, key, err := store.Create("cella up", "default")
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]string{"url": url, "apiKey": key})
	}
	fmt.Printf("cella serves the E2B API at %s\n\n", url)
	fmt.Printf("export E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\nexport E2B_API_KEY=%s\n", url, url, key)
	return nil
}

// raiseFileLimit takes all the descriptors that the limit allows: each sandbox needs a few, each stream two.
func raiseFileLimit() {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
		lim.Cur = lim.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &lim) // what stays low is reported by cella doctor
	}
}
