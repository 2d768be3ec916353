package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cella.dev/cella/gateway/keys"
)

// defaultStateDir holds what must survive a restart.
const defaultStateDir = "/var/lib/cella"

// keysDir is where the keys of a state directory are; `cella serve` reads the same place.
func keysDir(state string) string { return filepath.Join(state, "keys") }

func newKeysCommand() *cobra.Command {
	var state string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make, list and remove API keys",
		Long: "Make, list and remove API keys. A running `cella serve` with the same --state sees every change at once;\n" +
			"a removed key is refused by the next request.",
	}
	cmd.PersistentFlags().StringVar(&state, "state", defaultStateDir, "state directory")
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newKeysCreateCommand(&state, &asJSON), newKeysListCommand(&state, &asJSON), newKeysRemoveCommand(&state, &asJSON))
	return cmd
}

func newKeysCreateCommand(state *string, asJSON *bool) *cobra.Command {
	var name, team string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a key and print it; it can't be shown again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := keys.Open(keysDir(*state))
			if err != nil {
				return err
			}
			key, secret, err := store.Create(name, team)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					keys.Key
					Secret string `json:"key"`
				}{key, secret})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().StringVar(&team, "team", keys.DefaultTeam, "team that owns what is made with the key")
	return cmd
}

func newKeysListCommand(state *string, asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List keys",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := keys.Open(keysDir(*state))
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tTEAM\tKEY\tCREATED")
			for _, k := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s…\t%s\n", k.ID, k.Name, k.Team, k.Prefix, k.CreatedAt.Format(time.RFC3339))
			}
			return w.Flush()
		},
	}
}

func newKeysRemoveCommand(state *string, asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "Remove keys; their next request is refused",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			store, err := keys.Open(keysDir(*state))
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := store.Remove(id); err != nil {
					return fmt.Errorf("%w; `cella keys ls` shows the IDs", err)
				}
			}
			if *asJSON {
				return printJSON(cmd.OutOrStdout(), map[string][]string{"removed": ids})
			}
			return nil
		},
	}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
